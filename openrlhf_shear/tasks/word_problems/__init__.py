"""Word problems from templates for a pretrained model, whose every written step can be checked."""
