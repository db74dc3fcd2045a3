"""The results of commands as records, which ``--json`` prints, stores keep, and reports read.

A result is declared here and nowhere else: who has one live (`VerifyReport`, `SoakReport`, ...) makes its
record with ``document``, and a schema is made from the record. The name in ``schema`` tells which record a
document is. ``version`` counts up when a field goes away or changes its meaning; a new field does not change
it, and has a default here, so that older documents are still read. Neither torch nor Hypothesis is loaded.
"""
