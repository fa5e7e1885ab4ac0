"""Runs jobs in worker processes that may crash or hang, and changes nothing in the process that starts them."""
