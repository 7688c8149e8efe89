# SPDX-License-Identifier: Apache-2.0
"""Fovea inside other packages; each module needs its package and is imported on its own."""
