"""Scripts that run inside a jail. Standard library only, but for the maths; nothing here may import the rest."""
