"""The rollout page: data (what goes in), page (what is put together), and its HTML, CSS and scripts.

data.js decodes, tokens.js makes tokens, list.js filters and sorts, group.js shows a group, profiles.js its weights at a
glance, selection.js two spans side by side, heatmap.js their distances, keys.js moves by keyboard and starts the page.
"""

from openrlhf_shear.rollouts.page.page import make_page

__all__ = ["make_page"]
