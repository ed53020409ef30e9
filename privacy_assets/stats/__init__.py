"""One inference for every statistic that compares members with others: labels permuted by subject, intervals,
statistics.

Knows nothing of tables or metrics: a metric hands over what it counted and whose rows they are.
"""
