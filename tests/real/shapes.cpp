// A program with virtual functions, exceptions and containers.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
	virtual ~Shape() = default;
	virtual int area() const = 0;
};

struct Square : Shape {
	int side;
	explicit Square(int side) : side(side) {}
	int area() const override
	{
		if (side % 7 == 0)
			throw std::runtime_error("seven " + std::to_string(side));
		return side * side;
	}
};

int main()
{
	std::map<std::string, int> found;
	std::vector<std::unique_ptr<Shape>> shapes;

	for (int side = 0; side < 40; side++)
		shapes.push_back(std::make_unique<Square>(side));
	std::sort(shapes.begin(), shapes.end(), [](const auto &one, const auto &other) {
		return dynamic_cast<Square *>(one.get())->side % 10 <
		    dynamic_cast<Square *>(other.get())->side % 10;
	});
	for (auto &shape : shapes) {
		try {
			found[std::to_string(shape->area() % 10)] += 1;
		} catch (const std::exception &error) {
			found[error.what()] += 1;
		}
	}
	for (auto &[name, count] : found)
		std::printf("%s %d\n", name.c_str(), count);
}
