"""What an experiment's privacy promises and claims, in sentences for whoever asks for it."""
