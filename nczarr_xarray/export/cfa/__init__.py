"""Writing aggregations: a master file, and fragments beside it.

`to_cfa` is what users call, and plans new aggregations; `update` plans changes of those that exist.
Both make a `task`. `split` decides where variables are divided. Names are in `master_place`.
"""
