"""What a model takes, computed from its headers and its options alone.

The one arithmetic of the engine, which allocates by it, and of placement, which plans by it. No
torch, no device, no file beyond a checkpoint's headers.
"""
