"""Many runs from one command: what they are, and how this machine works them off."""
