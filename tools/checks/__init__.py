"""The stages of gpu_check.py, one file each. Standard library only."""
