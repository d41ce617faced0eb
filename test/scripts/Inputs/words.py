"""Whoever calls it.

Reading a file takes a while, as readers know.
"""
x = 1  # the best reading
