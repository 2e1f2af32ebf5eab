"""Process reward models: steps of a response, the conversation that a model reads, the model, and step scores."""
