"""Give what pydp2 needs of the interpreter and the system: folders, logs, threads that read ahead, memory."""
