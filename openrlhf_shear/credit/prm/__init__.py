"""Process reward models: a response cut into steps, the conversation they read, the model, and step scores."""
