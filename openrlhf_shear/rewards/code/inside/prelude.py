"""The names that LeetCode's Python has in scope, and the helpers that its tests use."""

# ruff: noqa: F401, F403, F405, I001 (modules last: some hold a function of their own name)
from typing import *
from bisect import *
from collections import *
from copy import deepcopy
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import add, itemgetter, mul, or_, xor
from random import choice, randint, shuffle
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits
import bisect
import builtins
import collections
import copy
import datetime
import functools
import heapq
import itertools
import math
import operator
import random
import re
import string
import sys


class ListNode:
    """LeetCode's node of a linked list."""

    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next


class TreeNode:
    """LeetCode's node of a binary tree."""

    def __init__(self, val=0, left=None, right=None):
        self.val = val
        self.left = left
        self.right = right


def list_node(values: list) -> ListNode | None:
    """Return a linked list of values."""
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head


def is_same_list(first: ListNode | None, second: ListNode | None) -> bool:
    while first is not None and second is not None:
        if first.val != second.val:
            return False
        first, second = first.next, second.next
    return first is None and second is None


def tree_node(values: list) -> TreeNode | None:
    """Return a binary tree from its values level by level; None stands for no node."""
    if not values:
        return None
    root = TreeNode(values[0])
    parents, rest = deque([root]), iter(values[1:])
    for value in rest:
        parent = parents.popleft()
        if value is not None:
            parent.left = TreeNode(value)
            parents.append(parent.left)
        value = next(rest, None)
        if value is not None:
            parent.right = TreeNode(value)
            parents.append(parent.right)
    return root


def is_same_tree(first: TreeNode | None, second: TreeNode | None) -> bool:
    pairs = [(first, second)]
    while pairs:
        first, second = pairs.pop()
        if first is None or second is None:
            if first is not second:
                return False
        elif first.val != second.val:
            return False
        else:
            pairs += [(first.left, second.left), (first.right, second.right)]
    return True


NAMES = {
    name: value
    for name, value in globals().items()
    if not name.startswith("_") and name not in ("annotations", "builtins", *vars(builtins))
}
