"""Executors run handlers: in tasks of the event loop, threads, child processes."""
