"""Formulas: tensors in, tensors out. Nothing here has parameters, settings or state, and nothing needs more than torch.

``attention`` (softargmax and exact attention), ``block`` (its blocked form), ``band`` (exact attention within a window),
``choice`` (hard attention), ``rank`` (what items see of each other by rank), ``feature`` (random features), ``linear`` and
``causal`` (linear attention, whole and looking back only), ``retrieval`` (the same for a kind's features), ``position``
(sinusoidal, rotary, ALiBi, T5 buckets, relative), ``scan`` (prefix sums with forgetting), ``state`` and ``cache`` (what
attention remembers between steps).
"""
