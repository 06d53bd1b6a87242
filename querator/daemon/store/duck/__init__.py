"""The store contract with DuckDB files. All SQL of partition files is in this package.

`storage` opens partitions, `duckstore` is one partition, and `attached` handles the files. The statements are in
`reading` and `applying`, and the schema is in `tables`.
"""
