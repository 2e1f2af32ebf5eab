"""Scripts of the code grader that run inside a jail, as in `jail.inside`. Standard library only."""
