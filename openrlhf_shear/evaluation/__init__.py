"""What came out of training: summaries of runs; later benchmarks, avg@k and checkpoint selection."""
