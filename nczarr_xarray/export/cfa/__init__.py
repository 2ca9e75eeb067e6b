"""Writing aggregations: a master file, and fragments beside it.

`api` is what users call, `split` decides where variables are cut, `place` knows the names of
master and fragments and makes a change valid, `new` and `update` plan what is written.
"""
