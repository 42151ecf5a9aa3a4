"""Rows become one commit."""
