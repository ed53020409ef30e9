"""One pipeline of a table, on values: what its steps are and do. It knows no orchestrator."""
