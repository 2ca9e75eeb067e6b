"""Writing aggregations: a master file, and fragments beside it.

`to_cfa` is what users call. `split` decides where variables are divided. `new_aggregation` and
`aggregation_change` plan what is written, as a `cfa_task`. Names are in `master_place`.
"""
