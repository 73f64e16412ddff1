"""Steps small enough that every number can be read: `tensor_split` cuts one layer, `zero_steps` trains nine numbers."""
