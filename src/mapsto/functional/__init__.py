"""Formulas: tensors in, tensors out. Nothing here has parameters, settings or state, and nothing needs more than torch.

``attention`` (softargmax and exact attention), ``block`` (its blocked form), ``band`` (exact attention within a window),
``rank`` (what items see of each other by rank), ``choice`` (hard attention), ``position`` (sinusoidal and rotary).
"""
