"""The worker: claims batches, runs handlers on the event loop or in threads, settles batches."""
