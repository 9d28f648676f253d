"""What runs inside a slot's processes: standard library only, and little of it, since each module mapped by
a slot costs every fork. Nothing here may import `ascent.sandbox` proper, and nothing here ever holds an
expected value, except the comparer and the tester, which run no program."""
