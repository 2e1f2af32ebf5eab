"""The rollout page: `data` prepares its content, `page` assembles it from its HTML, CSS and scripts.

data.js decodes, tokens.js makes tokens, list.js filters and sorts, group.js shows a group, profiles.js shows its
weights at a glance. selection.js shows two spans side by side and heatmap.js their distances. keys.js handles the
keyboard, starts the page, and puts a response first on a phone.
"""

from openrlhf_shear.rollouts.page.page import make_page

__all__ = ["make_page"]
