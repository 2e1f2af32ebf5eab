"""The paper's analyses of the distance (sections 2, 5.1, appendix A): pure functions on the diagnosis' tables."""
