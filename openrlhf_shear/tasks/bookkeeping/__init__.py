"""The bookkeeping task: stories of transfers between accounts; wrong entries are as fluent as right ones."""
