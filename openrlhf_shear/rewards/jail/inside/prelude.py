"""What LeetCode's Python has in scope, and the helpers that its tests use."""

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
    def __init__(self, val=0, next=None):
        self.val = val
        self.next = next


class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val = val
        self.left = left
        self.right = right


def list_node(values: list) -> ListNode | None:
    """A linked list of values."""
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head


def is_same_list(one: ListNode | None, other: ListNode | None) -> bool:
    while one is not None and other is not None:
        if one.val != other.val:
            return False
        one, other = one.next, other.next
    return one is None and other is None


def tree_node(values: list) -> TreeNode | None:
    """A binary tree from its values level by level; None where there is no node."""
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


def is_same_tree(one: TreeNode | None, other: TreeNode | None) -> bool:
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if one is None or other is None:
            if one is not other:
                return False
        elif one.val != other.val:
            return False
        else:
            pairs += [(one.left, other.left), (one.right, other.right)]
    return True


NAMES = {
    name: value
    for name, value in globals().items()
    if not name.startswith("_") and name not in ("annotations", "builtins", *vars(builtins))
}
