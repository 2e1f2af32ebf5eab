"""The record of a rollout and its table on disk; its tokens, answer and first error; the page that shows it."""
