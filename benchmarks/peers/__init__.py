"""The same whole step by other means: gradient, batch KL, moving average, control law.

Every peer starts from the state below and reads and writes the same arrays as the library's step. Here lie the steps as
such (NumPy, PyTorch, Triton, CuPy); `on_gpu` runs those of the GPU.
"""

STATE = {"lam": 0.1, "tau": 1.0, "kl_target": 0.05, "kl_alpha": 0.05}
LAW = {"lam_min": 0.05, "lam_max": 1.0, "kl_tolerance": 3.0, "lam_up": 1.2, "lam_down": 0.998}
