"""Pictures that a single chapter shows, one file per topic, built from the parts that `helpers.draw` provides.

Begin with the file of the chapter that you read.
"""
