"""Scripts of the maths grader that run inside a jail, as in `jail.inside`; they import its scripts, and packages."""
