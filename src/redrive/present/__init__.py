"""Records and texts about messages, queues, runs and the like, as command line, pages and terminal share them."""
