"""The ledger task: stories of who gives how much to whom, whose entries err as fluently as they are right."""
