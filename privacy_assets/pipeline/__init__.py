"""The pipeline of one table, independent of any orchestrator: settings, steps and storage of their
values.
"""
