"""Runs jobs in worker processes that may crash or hang, without changing the process that starts them."""
