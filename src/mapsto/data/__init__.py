"""Files -> rows -> split -> ragged store -> batches.

``table`` opens any source as a stream of named columns, ``value`` turns a cell into numbers or labels strictly,
``kind`` says what a column holds, ``split`` deals rows to train, val and test,
``store`` keeps ragged columns in memory maps, ``order`` says who comes when.
"""
