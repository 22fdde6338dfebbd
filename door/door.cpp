#include "door.hpp"
