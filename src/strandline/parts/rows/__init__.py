"""Kernels over sorted rows: Arrow in, Arrow out."""
