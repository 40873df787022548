"""Where handlers run: tasks of the event loop, threads, child processes."""
