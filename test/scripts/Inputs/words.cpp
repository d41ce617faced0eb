// What a user asks for is the first rule.
/// Returns nothing. Somebody has to read it.
int lies = 1; // `lies` is a name here, lay out the rest
auto message = "the tensor lies on two ranks";
auto word = "lies";
// What is a question?
/* TODO */
