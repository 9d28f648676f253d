"""`ascent evaluate`: how well do these weights solve these tasks?"""
