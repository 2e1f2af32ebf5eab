"""The memory that a run takes on a GPU, estimated from its command line and the model's config.json."""
