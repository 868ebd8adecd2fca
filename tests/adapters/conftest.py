"""What the adapters' tests need before their frameworks are imported."""

import os

# JAX asks once, when it first looks for devices. Two make a mesh; it would take most of a GPU's memory at once.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
