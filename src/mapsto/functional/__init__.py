"""Formulas: tensors in, tensors out. Nothing here has parameters, settings or state, and nothing needs more than torch.

``attention`` (softargmax and exact attention), ``block`` (its blocked form), ``position`` (sinusoidal, rotary,
ALiBi, T5 buckets, relative), ``scan`` (prefix sums with forgetting).
"""
