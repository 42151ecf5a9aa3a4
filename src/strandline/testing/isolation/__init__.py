"""A checker of histories: what isolation promises, held against what transactions saw."""
