"""Scripts that run inside a jail: those that every jail has. Standard library only; nothing here may import the rest.

Beside these, a jail has the folder of the script that it runs: `maths/inside` or `code/inside`.
"""
