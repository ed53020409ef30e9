"""Permutation tests by subject, confidence intervals, limits and results, independent of tables and
metrics.
"""
